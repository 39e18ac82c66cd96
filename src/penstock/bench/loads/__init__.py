"""What makes the work: prepared bytes over sockets, real clients, Kafka's own tools. A load counts and times."""
