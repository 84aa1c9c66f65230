"""One agent on a real network: keys, messages, mailbox, transport."""
