"""What the process and the machine ask for: compiling, forks, caches, files."""
