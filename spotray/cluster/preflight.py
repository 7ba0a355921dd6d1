"""Will the account take this cluster? Asked of the cloud itself, before anything is billed.

`check` is for a config that `spotray.cluster.validate` finds right. It looks at everything
before it answers: credentials, zones, instance types, images, quotas, buckets, rights, and
a cluster of the same name that runs already. What could not be looked at is a warning of
its own, so that it never passes for right.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from spotray.cloud.account import Account, Limit, TypeOffer
from spotray.cloud.azure.account import flaws as azure_flaws
from spotray.cluster import preflight_aws, preflight_gcp
from spotray.cluster.markets import LaunchConfig
from spotray.cluster.node_types import (
    NodeType,
    cloud_of,
    mapping,
    node_types,
    zones,
)
from spotray.cluster.preflight_values import Findings, Wish, buckets_of
from spotray.cluster.problems import Problem
from spotray.errors import ConfigError, NotPermittedError
from spotray.market.offer import Market

_CONTINENTS = {"us": "us", "northamerica": "us", "europe": "eu", "asia": "asia"}  # as buckets say
_ZONES = "provider.availability_zone"
# What each cloud asks in its own way: images, quotas of a node, buckets, rights.
_CLOUDS: Mapping[str, ModuleType] = {"aws": preflight_aws, "gcp": preflight_gcp}
_DRIVER = re.compile(r"nvidia|cuda|gpu|deep ?learning|dlami|\bcu\d{3}\b", re.IGNORECASE)
_ARCHITECTURES = {"x86_64": "x86_64", "x86": "x86_64", "amd64": "x86_64", "arm64": "arm64"}


def check(
    config: Mapping[str, Any], *, account: Account | None = None, write_probe: bool = False
) -> list[Problem]:
    """All that the cloud says against a cluster, errors first.

    Args:
        config: a cluster's YAML, read.
        account: whom to ask; None: the cloud, with the credentials of the environment.
        write_probe: whether to write a small object into each bucket, and delete it.
    """
    cloud, found = cloud_of(config), Findings()
    if cloud not in _CLOUDS:
        for what, cure in azure_flaws() if cloud == "azure" else ():
            found.add("provider", what, cure)
        asked = "nothing else" if cloud == "azure" else "nothing"
        what = f"{asked} was asked of {cloud or 'its cloud'}: only AWS and GCP are asked"
        found.add("provider", what, "look yourself", is_warning=True)
        return found.problems
    try:
        account = account or _CLOUDS[cloud].account_of(config)
        assert account is not None
        account.who()
    except ConfigError as exc:
        what, _, cure = str(exc).rpartition(": ")
        found.add("provider", what, cure)
        return found.problems
    there = _check_zones(config, account, found)
    wishes = wishes_of(config, list(there))
    offers = _check_types(wishes, account, found)
    _check_images(wishes, offers, account, found)
    _check_quotas(wishes, offers, account, found)
    _check_buckets(config, account, found, write_probe=write_probe)
    _check_running(config, wishes, account, found)
    _CLOUDS[cloud].check_rights(config, wishes, offers, account, found)
    return sorted(found.problems, key=lambda one: one.is_warning)


def wishes_of(config: Mapping[str, Any], region_zones: Sequence[str]) -> list[Wish]:
    """What each node type asks for; without zones in the config, in all of the region."""
    cloud, provider = cloud_of(config), mapping(config, "provider")
    named = tuple(zones(config) or region_zones)
    ours = LaunchConfig.parse(provider, cloud=cloud) if provider["type"] == "external" else None
    most = config.get("max_workers", 2)
    wishes = []
    for one in node_types(config):
        if ours is not None and not one.is_head:
            markets = ours.of(one.name).candidates(cloud, named, one.instance_type)
        else:
            spot = bool(one.spot_path) and not (one.is_head and ours is not None)
            markets = tuple(
                Market(cloud=cloud, zone=zone, instance_type=one.instance_type, spot=spot)
                for zone in named
            )
        count = 1 if one.is_head else int(one.given.get("max_workers", most))
        wishes.append(Wish(node=one, markets=markets, most=min(count, most) or count))
    return wishes


# -- what is offered ----------------------------------------------------------


def _check_zones(
    config: Mapping[str, Any], account: Account, found: Findings
) -> Mapping[str, bool]:
    """The region's zones."""
    region, there = mapping(config, "provider").get("region"), dict[str, bool]()
    with found.asking(_ZONES, "the zones were"):
        there = dict(account.zones())
        if not there:
            found.add("provider.region", f"there is no {region} for this account", "correct it")
            return there
        for zone in zones(config):
            if zone not in there:
                cure = f"name some of {', '.join(sorted(there))}"
                found.add(_ZONES, f"this account has no zone {zone} in {region}", cure)
            elif not there[zone]:
                found.add(_ZONES, f"{zone} is down", "leave it out for now", is_warning=True)
    return there


def _check_types(
    wishes: Sequence[Wish], account: Account, found: Findings
) -> Mapping[tuple[str, str], TypeOffer]:
    """The types that are offered, by type and zone; of all that is asked for if unknown."""
    every = {market.instance_type for wish in wishes for market in wish.markets}
    named = list(dict.fromkeys(market.zone for wish in wishes for market in wish.markets))
    offers: Mapping[tuple[str, str], TypeOffer] = {}
    with found.asking("available_node_types", "the instance types were"):
        offers = account.offers(every, named)
        for wish in wishes:
            _check_offered(wish, offers, named, found)
    return offers


def _check_offered(
    wish: Wish,
    offers: Mapping[tuple[str, str], TypeOffer],
    named: Sequence[str],
    found: Findings,
) -> None:
    where = {one: [zone for zone in named if (one, zone) in offers] for one in wish.types}
    nowhere = [one for one, there in where.items() if not there]
    for one, there in where.items():
        if not there:
            found.add(
                wish.types_path,
                f"{one} does not exist or is not offered in {', '.join(named)}",
                "correct the name, or take another type or other zones",
                is_warning=len(nowhere) < len(where),  # the others will do
            )
        elif len(there) < len(named):
            missing = ", ".join(zone for zone in named if zone not in there)
            found.add(
                wish.types_path,
                f"{one} is offered in {', '.join(there)}, not in {missing}",
                "leave the zone out of provider.availability_zone, if no other type is for it",
                is_warning=True,
            )
        if there and not wish.node.is_head and not _gpus(wish.node, offers[one, there[0]]):
            found.add(wish.types_path, f"{one} has no GPU", "take a type that has one")


def _gpus(node: NodeType, offer: TypeOffer) -> int:
    """How many a node has: its own, and those that GCP adds."""
    listed = node.config.get("guestAccelerators") if node.cloud == "gcp" else None
    added = [one for one in listed or () if isinstance(one, Mapping)]
    return offer.gpus + sum(int(one.get("acceleratorCount", 0)) for one in added)


def _check_images(
    wishes: Sequence[Wish],
    offers: Mapping[tuple[str, str], TypeOffer],
    account: Account,
    found: Findings,
) -> None:
    for wish in wishes:
        for path, reference in _CLOUDS[wish.node.cloud].images(wish.node):
            with found.asking(path, "the image was"):
                image = account.image(reference)
                if image is None:
                    what = f"there is no image {reference} that this account may use"
                    found.add(path, what, "name another, of this region")
                    continue
                if image.flaw:
                    found.add(path, f"{reference} {image.flaw}", "name another")
                _check_fit(wish, offers, path, image.architecture, found)
                has_gpu = any(
                    _gpus(wish.node, offer)
                    for (one, _), offer in offers.items()
                    if one in wish.types
                )
                if has_gpu and not wish.node.is_head and not _DRIVER.search(image.words):
                    found.add(
                        path,
                        f"nothing says that {reference} ({image.words[:80]}) has NVIDIA's driver",
                        "take that of `spotray cluster new`, or install the driver beforehand",
                        is_warning=True,
                    )


def _check_fit(
    wish: Wish,
    offers: Mapping[tuple[str, str], TypeOffer],
    path: str,
    architecture: str,
    found: Findings,
) -> None:
    of_image = _ARCHITECTURES.get(architecture.lower())
    unfit = {
        one
        for (one, _), offer in offers.items()
        if one in wish.types
        and offer.architectures
        and of_image not in {_ARCHITECTURES.get(name.lower()) for name in offer.architectures}
    }
    if of_image and unfit:
        what = f"is for {of_image}, which {', '.join(sorted(unfit))} cannot run"
        found.add(path, what, "name another image")


# -- quotas -------------------------------------------------------------------


def _check_quotas(
    wishes: Sequence[Wish],
    offers: Mapping[tuple[str, str], TypeOffer],
    account: Account,
    found: Findings,
) -> None:
    for wish in wishes:
        kinds = list(dict.fromkeys(market.spot for market in wish.markets))
        for spot in kinds:
            kind = "spot" if spot else "on-demand"
            tightest = []
            for one in wish.types:
                offer = next((offers[key] for key in offers if key[0] == one), None)
                if offer is None:
                    continue
                with found.asking(wish.types_path, f"the quota for {kind} nodes was"):
                    limits = [
                        *account.limits(one, offer, spot=spot),
                        *_CLOUDS[wish.node.cloud].added_limits(wish.node, account, spot=spot),
                    ]
                    if limits:
                        tightest.append((one, min(limits, key=lambda limit: limit.fits)))
            if tightest:
                best = max(tightest, key=lambda pair: pair[1].fits)
                _judge(wish, kind, *best, is_fallback=spot != kinds[0], found=found)


def _judge(
    wish: Wish, kind: str, one: str, limit: Limit, *, is_fallback: bool, found: Findings
) -> None:
    if limit.fits >= wish.most:
        return
    needed = limit.used + wish.most * limit.per_node
    found.add(
        wish.types_path,
        f"quota {limit.name} is {limit.limit:g} {limit.unit}, {limit.used:g} in use, and a "
        f"{kind} {one} takes {limit.per_node:g}: {limit.fits} of {wish.most} nodes fit",
        f"ask the cloud for {needed:g}" + (", or there is no falling back" if is_fallback else ""),
        is_warning=is_fallback or limit.fits > 0,
    )


# -- buckets ------------------------------------------------------------------


def _check_buckets(
    config: Mapping[str, Any], account: Account, found: Findings, *, write_probe: bool
) -> None:
    cloud, region = cloud_of(config), str(mapping(config, "provider").get("region"))
    for name, path in buckets_of(config, _CLOUDS[cloud].BUCKET).items():
        with found.asking(path, f"bucket {name} was"):
            try:
                bucket = account.bucket(name)
                if bucket is None:
                    cure = "make it, or name another"
                    found.add(path, f"there is no bucket {name}", cure)
                    continue
                if not _is_near(bucket.place, region):
                    found.add(
                        path,
                        f"bucket {name} is in {bucket.place}, the cluster in {region}: every "
                        "checkpoint is paid for as traffic",
                        "name a bucket of that region",
                        is_warning=True,
                    )
                if write_probe:
                    account.probe(name, f"spotray-probe-{uuid.uuid4().hex}")
            except NotPermittedError as exc:
                found.add(path, f"no right to bucket {name}: {exc}", _CLOUDS[cloud].BUCKET_CURE)


def _is_near(place: str, region: str) -> bool:
    """Whether a bucket's place holds the region: ``US`` holds us-central1."""
    place = place.lower()
    return (
        not place or place == region or (place in ("us", "eu", "asia") and region[:2] == place[:2])
    )


# -- a cluster of that name ---------------------------------------------------


def _check_running(
    config: Mapping[str, Any], wishes: Sequence[Wish], account: Account, found: Findings
) -> None:
    """Ray ends the nodes of a cluster whose entries have changed, the head among them."""
    name = str(config.get("cluster_name", ""))
    by_name = {wish.node.name: wish for wish in wishes}
    with found.asking("cluster_name", f"whether a cluster {name} runs was"):
        differ = []
        for one in account.nodes_of(name):
            wish = by_name.get(one.node_type)
            kind = "head" if one.is_head else "worker"
            if wish is None:
                differ.append(f"{kind} {one.name} is of a node type {one.node_type!r}")
                continue
            for key, expected in _CLOUDS[wish.node.cloud].expected(wish).items():
                told = one.facts.get(key, "")
                if told and told not in expected:
                    differ.append(f"{kind} {one.name} has {key} {told}, not {expected[0]}")
        if differ:
            more = f" and {len(differ) - 2} more" if len(differ) > 2 else ""
            found.add(
                "cluster_name",
                f"a cluster {name} is running with another spec ({'; '.join(differ[:2])}{more})",
                "take another name, or `ray down` that one first: `ray up` would end its nodes",
            )
