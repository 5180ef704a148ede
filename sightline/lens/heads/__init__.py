"""What each attention head does: roles, patterns, relations, redundancy, matching."""
