"""Everything known about a rank: its reports, its log, its exception, the kernel's evidence."""
