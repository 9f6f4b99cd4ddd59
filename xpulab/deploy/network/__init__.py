"""What a cluster of hosts needs of the network: names of hosts, TCP ports, and whether hosts reach each other."""
