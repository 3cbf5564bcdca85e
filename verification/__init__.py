"""What a variant must compute, in float64, and running it to see: on the emulator or on a GPU."""
