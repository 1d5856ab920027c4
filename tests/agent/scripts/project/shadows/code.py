OURS = "our code"
