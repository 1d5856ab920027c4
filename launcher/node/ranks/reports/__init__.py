"""What is known of a rank: its reports, its log, its exception, the kernel's evidence."""
