"""What is compiled for networks: towers, recurrent cores, tables of cells, and the threads that share them."""
