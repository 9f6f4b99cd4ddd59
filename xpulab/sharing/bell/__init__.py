"""What the processes of one host share: a ring of tasks, mailboxes for the replies, and meetings of the ranks."""
