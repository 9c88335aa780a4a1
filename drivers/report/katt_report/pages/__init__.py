"""Pages of HTML: of results, of a comparison, of a log of training."""
