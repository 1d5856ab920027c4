VALUE = "from the sibling in the folder"
