"""Byzantine reliable broadcast: what a correct node delivers all of them deliver, whatever the sender does."""
