"""Two modules beside it have the names of standard ones, and a mere folder has that of a third."""

import calendar

import code
import profile

print(code.OURS, profile.OURS, calendar.isleap(2024))
