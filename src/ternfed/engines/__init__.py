"""Who carries the bytes: one process (`simulate`), or Flower over a network (`flower`). They never see each other."""
