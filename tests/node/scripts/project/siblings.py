import sibling

print(sibling.VALUE, sibling.__name__, sibling.__file__)
