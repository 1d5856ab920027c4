OURS = "our profile"
