"""What earlier requests left behind, in this process and in files that processes share."""
