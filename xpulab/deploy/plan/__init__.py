"""Which engine runs where: what the hosts have, and the plan that follows from it."""
