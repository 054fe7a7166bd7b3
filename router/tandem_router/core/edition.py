"""The groups of workers of one edition, and the ServedModel that frontends are told of them."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.v1 import router_pb2, worker_pb2
from tandem_router.core.group import Group
from tandem_router.core.values import Edition, Fingerprint, Needs, Offer
from tandem_router.policies import Policy

MOST_PAGES = 2**63
"""More than all can have; what is said beyond is cut, so that it fits the wire."""

SIM_ENGINE = "sim"
"""What the simulated engine's fingerprint says."""


class EditionFleet:
    """The workers of one edition: its groups differ in what KV is like, not in what tokens mean."""

    def __init__(self, edition: Edition, policy: Policy, whole_policy: Policy) -> None:
        self.edition = edition
        self.policy = policy
        """How the prefill worker of a pair is chosen."""
        self.whole_policy = whole_policy
        """How an aggregated worker is."""
        self.groups: dict[Fingerprint, Group] = {}
        self.ready_pairs = 0
        """Pairs that take work."""
        self.waits = False
        """The edition has no pair now, had one lately, and requests wait for the next."""
        self._served = _served(edition, {})
        self.pairless_since: float | None = None
        self.offers: frozenset[Offer] = frozenset()
        """Offers of the present pairs; without a pair, those of the last pairs."""
        self.offered_since: float | None = None
        """When `offers` changed last; None: `offers` never changed."""

    def serve(self, now: float) -> None:
        """Say what frontends are to know, now that the groups are as they are. Without a pair it is
        what they knew, and requests wait for another.
        """
        paired = {mine: group for mine, group in self.groups.items() if group.pairs}
        if paired:
            self._served = _served(self.edition, paired)
            self.ready_pairs, self.waits = sum(group.pairs for group in paired.values()), False
            self.pairless_since = None
            offers = frozenset(group.offer for group in paired.values())
            if self.offers and offers != self.offers:
                self.offered_since = now
            self.offers = offers
        elif self.pairless_since is None:
            self.ready_pairs, self.waits = 0, self.ready_pairs > 0
            self.pairless_since = now

    def served(self) -> router_pb2.ServedModel:
        """What frontends are told now, without what is free."""
        told = router_pb2.ServedModel(ready_pairs=self.ready_pairs, waits=self.waits)
        told.MergeFrom(self._served)
        return told

    @property
    def proves(self) -> bool:
        """Whether workers of it are yet to be proved."""
        return any(each.prefill.proving or each.decode.proving for each in self.groups.values())

    def kv_cache(self) -> router_pb2.KvCache | None:
        """What all decode workers that take work last reported, together; None: one of them does
        not say, or there is none. Costs a pass over them.
        """
        pages = used = 0
        sizes = set()
        for fingerprint, group in self.groups.items():
            for worker in group.decode.taking():
                size, total = fingerprint.page_size, worker.kv_tokens_total
                if not (size and total):
                    return None
                sizes.add(size)
                pages += total // size
                used += -(-min(worker.kv_tokens_used, total) // size)
        if not pages:
            return None
        pages = min(pages, MOST_PAGES)
        size = sizes.pop() if len(sizes) == 1 else 0
        return router_pb2.KvCache(pages=pages, used_pages=min(used, pages), page_size=size)

    def meeting(self, needs: Needs) -> frozenset[Offer]:
        """Offers whose workers can run a request with these needs."""
        return frozenset([each for each in self.offers if each.meets(needs)])

    def unmet_since(self, needs: Needs) -> float | None:
        """Since when no pair can run what needs that, at the earliest; None: some can."""
        if self.pairless_since is not None or self.meeting(needs):
            return self.pairless_since
        return self.offered_since


def _served(edition: Edition, paired: Mapping[Fingerprint, Group]) -> router_pb2.ServedModel:
    """What frontends are told of an edition and its groups with a pair, but for the pairs."""
    served = router_pb2.ServedModel(
        name=edition.model, tokenizer_sha256=edition.tokenizer_sha256, limits=worker_pb2.Limits()
    )
    if not paired:
        return served
    groups = paired.values()
    traits = {each for group in groups for each in (*group.prefill.traits, *group.decode.traits)}
    contexts = [group.offer.context_length for group in groups]
    names = [group.offer.logits_processors for group in groups]
    served.limits.max_sequences = min(each.max_sequences for each in traits)
    served.limits.context_length = min(contexts)
    served.limits.vocabulary = min(each.vocabulary for each in traits)
    served.longest_context = max(contexts)
    served.logits_processors.extend(sorted(frozenset.intersection(*names)))
    served.any_logits_processors.extend(sorted(frozenset.union(*names)))
    adapters = frozenset.union(*(group.offer.lora_adapters for group in groups))
    served.lora_adapters.extend(sorted(adapters))
    served.simulated = any(each.engine == SIM_ENGINE for each in paired)
    return served
