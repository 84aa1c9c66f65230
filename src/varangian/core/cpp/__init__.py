"""Loops in C++ that are compiled on this machine, and kept for later runs."""
