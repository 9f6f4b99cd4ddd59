"""Other hosts: their addresses and keys, what they have, and the connection with their engines."""
