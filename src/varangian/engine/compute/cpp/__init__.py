"""Loops in C++ for what whole-tensor operations do in many passes; used by runs that are compiled."""
