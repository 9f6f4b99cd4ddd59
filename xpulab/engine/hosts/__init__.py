"""What ranks of several hosts need: rows, messages and files between the hosts, and the helper rank."""
