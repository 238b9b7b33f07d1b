"""What every page has in common: report, comparison and live page have one head, one font and the same colours."""
