"""A run spread over several processes, GPUs or machines by `torch.distributed` (docs/scale.md).

Rank 0 is the server and trains its share of the clients; the others train theirs. What goes from rank to rank are a
broadcast, uploads and what clients remember, all of them bytes: `link` carries them, `team` is rank 0's side of it,
`worker` that of the others, `launch` starts them on one machine.
"""
