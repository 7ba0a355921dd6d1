"""What Google's machines cost now, and how likely spot ones are to be had.

Google's public catalog has no machine types: it prices cores, memory and GPUs of a family by
the hour. For families that are not known here, the spot price of a whole machine is what
Compute Engine's own history says.

Source:
    "Get Google Cloud public pricing information", Cloud Billing documentation;
    `AdviceClient` of google-cloud-compute 1.56; 2026.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from spotray.cloud.codes import RETRY_S
from spotray.cloud.gcp.errors import class_of, reason_of
from spotray.cloud.prices import Quote, Score
from spotray.errors import ConfigError, NotAnswered, NotPermittedError, ThrottledError
from spotray.market import catalog
from spotray.market.catalog import InstanceType

_COMPUTE_ENGINE = "services/6F81-5844-456A"
_CATALOG, _HISTORY = "Cloud Billing Catalog", "Compute Engine capacity history"
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")


@dataclass(frozen=True, kw_only=True)
class _Family:
    """How the catalog describes what a family of machine types is made of."""

    prefix: str  # of the machine types
    host: str  # "G2 Instance" Core, "G2 Instance" Ram
    gpu: str


# Longest first: an a2-ultragpu is an a2 with other GPUs.
_FAMILIES = (
    _Family(prefix="a2-highgpu-", host="A2 Instance", gpu="Nvidia Tesla A100 GPU"),
    _Family(prefix="g2-standard-", host="G2 Instance", gpu="Nvidia L4 GPU"),
)
_Parts = Mapping[tuple[str, bool], float]  # USD per hour of "G2 Instance Core", by spot


class GcpPrices:
    """`spotray.cloud.prices.PriceSource` of Google Cloud. A region is asked about as a whole."""

    cloud = "gcp"

    def __init__(
        self,
        *,
        project: str = "",
        credentials: Any = None,
        billing_url: str = "",
        advice: Any = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            project: whose history is asked for; empty: that of the environment.
            credentials: of google-auth; None: those of the environment.
            billing_url: where the catalog is; empty: at Google.
            advice: an `AdviceClient`; None: one with these credentials.

        Raises:
            ConfigError: the client libraries or the credentials are missing.
        """
        self._credentials, found = _credentials(credentials)
        self._project = project or found
        self._billing_url, self._advice = billing_url, advice

    def quotes(self, region: str, instance_types: Sequence[str]) -> list[Quote]:
        _check_region(region)
        kinds = [(name, catalog.find(self.cloud, name)) for name in instance_types]
        made_up = [
            (kind, family)
            for name, kind in kinds
            if kind is not None and kind.gpus and (family := _family(name)) is not None
        ]
        found = []
        if made_up:
            parts = _parts(self._skus, region, {family for _, family in made_up})
            if not parts:
                raise ConfigError(
                    f"Google's catalog prices nothing that was asked for in {region!r}: is that a "
                    "region?"
                )
            found = [
                self._quote(region, kind.name, spot, usd, _CATALOG)
                for kind, family in made_up
                for spot in (False, True)
                if (usd := _machine_usd(kind, family, parts, spot=spot)) is not None
            ]
        others = [name for name in instance_types if _family(name) is None]
        return [*found, *self._by_history(region, others)]

    def _by_history(self, region: str, names: Sequence[str]) -> Iterator[Quote]:
        for name in names:
            if (usd := _latest_usd(self.history(region, name))) is not None:
                yield self._quote(region, name, True, usd, _HISTORY)

    def history(self, region: str, machine_type: str) -> Any:
        """What Compute Engine tells of a machine type on spot: prices and preemptions by day.

        Raises:
            ConfigError: no project, or google-cloud-compute is too old.
            NotPermittedError, ThrottledError, NotAnswered: as for `quotes`.
        """
        compute = _compute()
        client = self._advice or _advice_client(self._credentials)
        with _asking(f"gcp/{region}", "compute.advice.capacityHistory"):
            return client.capacity_history(
                project=_project(self._project),
                region=region,
                capacity_history_request_resource=compute.CapacityHistoryRequest(
                    types=["PRICE", "PREEMPTION"],
                    instance_properties=compute.CapacityHistoryRequestInstanceProperties(
                        machine_type=machine_type,
                        scheduling=compute.CapacityHistoryRequestInstancePropertiesScheduling(
                            provisioning_model="SPOT"
                        ),
                    ),
                ),
                retry=None,
            )

    def _quote(self, region: str, name: str, spot: bool, usd: float, source: str) -> Quote:
        return Quote(
            cloud=self.cloud,
            region=region,
            zone="",
            instance_type=name,
            spot=spot,
            usd_per_hour=usd,
            source=source,
        )

    @cached_property
    def _skus(self) -> list[dict[str, Any]]:
        """All of Compute Engine's, a few thousand on each page; asked once."""
        from googleapiclient.discovery import build

        options = {"api_endpoint": self._billing_url} if self._billing_url else None
        found: list[dict[str, Any]] = []
        with _asking("gcp", "cloudbilling.services.skus.list"):
            service = build(
                "cloudbilling",
                "v1",
                credentials=self._credentials,
                client_options=options,
                cache_discovery=False,
                static_discovery=True,
            )
            skus = service.services().skus()
            request = skus.list(parent=_COMPUTE_ENGINE, currencyCode="USD")
            while request is not None:
                page = request.execute()
                found.extend(page.get("skus", []))
                request = skus.list_next(request, page)
        return found


class GcpScores:
    """`spotray.cloud.prices.PlacementScorer` of Google Cloud."""

    cloud = "gcp"

    def __init__(self, *, project: str = "", credentials: Any = None, advice: Any = None) -> None:
        """Nothing is asked yet; as for `GcpPrices`."""
        self._prices = GcpPrices(project=project, credentials=credentials, advice=advice)
        self._credentials, found = _credentials(credentials)
        self._project, self._advice = project or found, advice

    def scores(self, region: str, instance_types: Sequence[str], *, nodes: int) -> list[Score]:
        _check_region(region)
        if not instance_types:
            return []
        compute = _compute()
        selection = compute.CapacityAdviceRequestInstanceFlexibilityPolicyInstanceSelection(
            machine_types=list(instance_types)
        )
        request = compute.CapacityAdviceRequest(
            size=nodes,
            instance_properties=compute.CapacityAdviceRequestInstanceProperties(
                scheduling=compute.CapacityAdviceRequestInstancePropertiesScheduling(
                    provisioning_model="SPOT"
                )
            ),
            instance_flexibility_policy=compute.CapacityAdviceRequestInstanceFlexibilityPolicy(
                instance_selections={"any": selection}
            ),
        )
        client = self._advice or _advice_client(self._credentials)
        with _asking(f"gcp/{region}", "compute.advice.capacity"):
            answer = client.capacity(
                project=_project(self._project),
                region=region,
                capacity_advice_request_resource=request,
                retry=None,
            )
        found = [
            Score(
                cloud=self.cloud,
                region=region,
                zone=shard.zone.rpartition("/")[2],
                instance_types=(shard.machine_type,)
                if shard.machine_type
                else tuple(instance_types),
                nodes=nodes,
                obtainable_frac=one.scores.obtainability,
                preempted_frac=self._preempted_frac(region, shard.machine_type),
            )
            for one in answer.recommendations
            for shard in one.shards
        ]
        return sorted(found, key=lambda one: (-one.obtainable_frac, one.zone))

    def _preempted_frac(self, region: str, machine_type: str) -> float | None:
        if not machine_type:
            return None
        records = self._prices.history(region, machine_type).preemption_history
        latest = max(records, key=lambda one: one.interval.end_time, default=None)
        return None if latest is None else float(latest.preemption_rate)


def _family(name: str) -> _Family | None:
    return next((one for one in _FAMILIES if name.startswith(one.prefix)), None)


def _parts(skus: Iterable[dict[str, Any]], region: str, families: Iterable[_Family]) -> _Parts:
    """What cores, memory and GPUs of these families cost in a region."""
    begins: dict[tuple[str, str], tuple[str, bool]] = {}
    for family in families:
        for part in (f"{family.host} Core", f"{family.host} Ram"):
            begins["OnDemand", f"{part} running in "] = part, False
            begins["Preemptible", f"Spot Preemptible {part} running in "] = part, True
        begins["OnDemand", f"{family.gpu} running in "] = family.gpu, False
        spot = f"{family.gpu} attached to Spot Preemptible VMs running in "
        begins["Preemptible", spot] = family.gpu, True
    found: dict[tuple[str, bool], float] = {}
    try:
        for sku in skus:
            if region not in sku.get("serviceRegions", []):
                continue
            kind, words = sku["category"]["usageType"], sku["description"]
            for (usage, begin), key in begins.items():
                if kind == usage and words.startswith(begin):
                    found[key] = _unit_usd(sku)
    except (KeyError, TypeError, ValueError, IndexError) as exc:
        raise NotAnswered(f"Google's catalog has another shape: {exc!r}") from exc
    return found


def _unit_usd(sku: Mapping[str, Any]) -> float:
    """The price of one core, GiB or GPU for an hour."""
    expression = sku["pricingInfo"][-1]["pricingExpression"]
    if expression["usageUnit"] not in ("h", "GiBy.h"):
        raise ValueError(f"unit {expression['usageUnit']!r}")
    price = expression["tieredRates"][-1]["unitPrice"]
    return int(price.get("units", 0)) + int(price.get("nanos", 0)) / 1e9


def _machine_usd(kind: InstanceType, family: _Family, parts: _Parts, *, spot: bool) -> float | None:
    """A whole machine; None if the price of a part is not told."""
    made_of = (
        (f"{family.host} Core", float(kind.cpus)),
        (f"{family.host} Ram", kind.memory_gib),
        (family.gpu, float(kind.gpus)),
    )
    if any((part, spot) not in parts for part, _ in made_of):
        return None
    return sum(parts[part, spot] * count for part, count in made_of) or None


def _latest_usd(history: Any) -> float | None:
    latest = max(history.price_history, key=lambda one: one.interval.end_time, default=None)
    if latest is None:
        return None
    price = latest.list_price
    if price.currency_code not in ("", "USD"):
        return None
    return (price.units + price.nanos / 1e9) or None


def _check_region(region: str) -> None:
    if not _REGION.fullmatch(region):
        raise ConfigError(
            f"Google Cloud has no region {region!r}: write it as us-central1 or europe-west4"
        )


def _project(given: str) -> str:
    if not given:
        raise ConfigError(
            "no project of Google Cloud is set: say `gcloud config set project`, or set "
            "GOOGLE_CLOUD_PROJECT"
        )
    return given


def _credentials(given: Any) -> tuple[Any, str]:
    """Credentials, and the project that comes with them."""
    if given is not None:
        return given, os.environ.get("GOOGLE_CLOUD_PROJECT", "")
    try:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
    except ImportError as exc:
        raise ConfigError(
            "prices of Google Cloud need its client libraries: pip install 'spotray[gcp]'"
        ) from exc
    try:
        found, project = google.auth.default(
            scopes=["https://www.googleapis.com/auth/cloud-platform"]
        )
    except DefaultCredentialsError as exc:
        raise ConfigError(
            "no credentials for Google Cloud here: say `gcloud auth application-default login`, "
            "or set GOOGLE_APPLICATION_CREDENTIALS"
        ) from exc
    return found, project or ""


def _compute() -> Any:
    from google.cloud import compute_v1

    if not hasattr(compute_v1, "CapacityHistoryRequest"):
        raise ConfigError(
            f"google-cloud-compute {compute_v1.__version__} asks for no advice: "
            "pip install -U google-cloud-compute"
        )
    return compute_v1


def _advice_client(credentials: Any) -> Any:
    return _compute().AdviceClient(credentials=credentials)


@contextmanager
def _asking(market: str, right: str) -> Iterator[None]:
    """Errors of a question in our words, the right that it takes with them."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError
    from googleapiclient.errors import Error, HttpError

    try:
        yield
    except GoogleAPICallError as exc:
        reasons = [one.get("reason", "") for one in exc.errors if isinstance(one, dict)]
        code = str(exc.reason or next(iter(reasons), ""))
        raise _error(market, right, int(exc.code or 0), code, exc.message) from exc
    except HttpError as exc:
        code, words = reason_of(exc)
        raise _error(market, right, int(exc.resp.status), code, words) from exc
    except GoogleAuthError as exc:
        raise ConfigError(
            f"Google does not take these credentials: {exc}: say `gcloud auth "
            "application-default login`"
        ) from exc
    except (Error, OSError) as exc:
        raise NotAnswered(f"{market} {right}: {exc}") from exc


def _error(market: str, right: str, status: int, code: str, words: str) -> Exception:
    text = f"{market} {right}: {code or status}: {words}"
    ours = class_of(code, words, status=status)
    if status == 429 or (ours is not None and issubclass(ours, ThrottledError)):
        return ThrottledError(text, market=market, code=code, retry_after_s=RETRY_S)
    if status in (401, 403):
        return NotPermittedError(text, market=market, code=code)
    if status in (400, 404):
        return ConfigError(text)
    return NotAnswered(text)
