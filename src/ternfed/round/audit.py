"""An upload without which the model would be clearly better on data held out on the server is left out of its round.

Norms do not tell a client that turns its change round, or that learned wrong labels, from one whose data differ; what
the model knows afterwards does. Xie, Koyejo, Gupta: Zeno, ICML 2019, score uploads by the loss on data of the server.
Here each round is concluded once more without each client in turn. `federation.audit` is the share by which the loss
must fall. An experiment has it off unless it says otherwise, because a round of n uploads costs n more updates and
evaluations; `ternfed server` has it on where a round asks few clients. Uploads are held in memory for it, up to
`MOST_BYTES`; where a round has more, nobody looks.
"""

from __future__ import annotations

from dataclasses import replace

from ternfed.aggregation.aggregation import Uploads
from ternfed.aggregation.clipped_mean import MOST_BYTES
from ternfed.round.federation import Federation, helpers_of
from ternfed.round.intake import Intake
from ternfed.round.state import State

FEWEST = 3
"""Of two that disagree nobody knows who lies."""


def is_audited(federation: Federation, asked: int) -> bool:
    """Whether the uploads of so many clients are to be kept until the round is over."""
    if federation.experiment.federation.audit is None or federation.held_out is None:
        return False
    return asked * max(schema.size for schema in federation.algorithm.up) <= MOST_BYTES


def finished(federation: Federation, state: State, intake: Intake) -> Uploads:
    """All uploads of a round made one, without those that do harm; never without half of them."""
    uploads, share = intake.finish(), federation.experiment.federation.audit
    kept = [client for client, message in sorted(intake.taken.items()) if message.tensors]
    if share is None or len(kept) < FEWEST:
        return uploads
    fewest, notes, loss = len(kept) // 2 + 1, dict(uploads.notes), _loss_after(federation, state, uploads)
    while len(kept) > fewest:
        without = {client: intake.of_only([other for other in kept if other != client]) for client in kept}
        losses = {client: _loss_after(federation, state, each) for client, each in without.items()}
        worst = min(kept, key=losses.__getitem__)
        if not losses[worst] < (1 - share) * loss:
            break
        notes[worst] = (
            f"client {worst}: left out, the loss on held-out data is {losses[worst]:.3g} without it "
            f"instead of {loss:.3g}"
        )
        kept.remove(worst)
        uploads, loss = without[worst], losses[worst]
    return replace(uploads, notes=dict(sorted(notes.items())))


def _loss_after(federation: Federation, state: State, uploads: Uploads) -> float:
    """The loss on held-out data, if these were the uploads of the round."""
    assert federation.held_out is not None
    server = federation.algorithm.update(state.server, uploads, helpers_of(federation, state.round + 1))
    return federation.held_out.evaluate(federation.network.with_counters(server.weights))[1]
