"""Many experiments, some at a time: one of them and its folder (`trial`), several in processes of their own
(`side_by_side`), a grid of settings as a list of them (`grid`), and what they have come to (`standing`)."""
