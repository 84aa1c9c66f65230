"""The same loops on a GPU, one thread per agent."""
