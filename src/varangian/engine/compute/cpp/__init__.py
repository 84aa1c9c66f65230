"""C++ loops for what whole-tensor operations do in many passes. Compiled runs use them."""
