"""Published results: the files of results/MACHINE/EXPERIMENT/, and what is made from them."""
