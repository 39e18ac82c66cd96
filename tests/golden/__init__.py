"""Request frames of real clients, kept as hex, and the program that captures them."""
