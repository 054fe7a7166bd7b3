"""The groups of workers of one edition, and the ServedModel that frontends are told of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tandem_router.core.group import Group
from tandem_router.core.values import Edition, Fingerprint, KvCache, Needs, Offer, ServedModel
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
        self.served = ServedModel(name=edition.model, tokenizer_sha256=edition.tokenizer_sha256)
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
            simulated = any(each.engine == SIM_ENGINE for each in paired)
            self.served = replace(_served(self.edition, paired.values()), simulated=simulated)
            self.pairless_since = None
            offers = frozenset(group.offer for group in paired.values())
            if self.offers and offers != self.offers:
                self.offered_since = now
            self.offers = offers
        elif self.pairless_since is None:
            had_pairs = self.served.ready_pairs > 0
            self.served = replace(self.served, ready_pairs=0, waits=had_pairs)
            self.pairless_since = now

    @property
    def proves(self) -> bool:
        """Whether workers of it are yet to be proved."""
        return any(each.prefill.proving or each.decode.proving for each in self.groups.values())

    def kv_cache(self) -> KvCache | None:
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
        return KvCache(pages, min(used, pages), sizes.pop() if len(sizes) == 1 else 0)

    def meeting(self, needs: Needs) -> frozenset[Offer]:
        """Offers whose workers can run a request with these needs."""
        return frozenset([each for each in self.offers if each.meets(needs)])

    def unmet_since(self, needs: Needs) -> float | None:
        """Since when no pair can run what needs that, at the earliest; None: some can."""
        if self.pairless_since is not None or self.meeting(needs):
            return self.pairless_since
        return self.offered_since


def _served(edition: Edition, paired: Collection[Group]) -> ServedModel:
    """What frontends are told of an edition with groups that have a pair."""
    traits = {each for group in paired for each in (*group.prefill.traits, *group.decode.traits)}
    contexts = [group.offer.context_length for group in paired]
    names = [group.offer.logits_processors for group in paired]
    return ServedModel(
        name=edition.model,
        tokenizer_sha256=edition.tokenizer_sha256,
        max_sequences=min(each.max_sequences for each in traits),
        context_length=min(contexts),
        longest_context=max(contexts),
        vocabulary=min(each.vocabulary for each in traits),
        ready_pairs=sum(group.pairs for group in paired),
        logits_processors=tuple(sorted(frozenset.intersection(*names))),
        any_logits_processors=tuple(sorted(frozenset.union(*names))),
        lora_adapters=tuple(sorted(frozenset.union(*(g.offer.lora_adapters for g in paired)))),
    )
