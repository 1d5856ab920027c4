import random

import numpy

print(random.random(), numpy.random.rand())
