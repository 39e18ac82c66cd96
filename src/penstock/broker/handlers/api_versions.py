"""ApiVersions (key 18), versions 0–4.

v3: client software name and version, features (KIP-511, KIP-584). v4: a supported feature may start at 0 (KIP-1022).
A controller's listener names what brokers ask of the controller and of each other's quorum; other listeners do not.
A version that is not served is answered in version 0 with UNSUPPORTED_VERSION, so that any client can go on.
"""

import re
from typing import TYPE_CHECKING

from penstock.metadata.features import KRAFT_LEVEL, KRAFT_VERSION, SUPPORTED_FEATURES, LevelRange
from penstock.model.errors import ErrorCode
from penstock.wire.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.served import advertised_versions

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

# What no metadata record finalizes. Beyond Kafka there is InitProducerId 6 (KIP-939), which is not advertised.
_FIXED_FEATURES = {KRAFT_VERSION: LevelRange(KRAFT_LEVEL, KRAFT_LEVEL), "penstock.two.phase.commit": LevelRange(1, 1)}
# KIP-511: what a client may call itself; the broker logs and counts by it.
_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def handle(broker: "Broker", context: "RequestContext", request: ApiVersionsRequest) -> ApiVersionsResponse:
    kind = "controller" if context.listener_name in broker.router.controller_listeners else "broker"
    if context.api_version >= 3 and not (
        _SOFTWARE_NAME.fullmatch(request.client_software_name)
        and _SOFTWARE_NAME.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=_api_keys(kind))
    image = broker.image
    return ApiVersionsResponse(
        api_keys=_api_keys(kind),
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(name, levels.minimum, levels.maximum)
            for name, levels in {**SUPPORTED_FEATURES, **_FIXED_FEATURES}.items()
        ],
        finalized_features_epoch=image.end_offset - 1,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(name, level, level)
            for name, level in sorted({**image.features, KRAFT_VERSION: KRAFT_LEVEL}.items())
            if level  # 0 is told by leaving it out
        ],
    )


def unsupported_version_response() -> ApiVersionsResponse:
    """For the router: the answer, in version 0, to a version that is not served."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_api_keys("broker"))


def _api_keys(kind: str) -> list[ApiVersionsResponse.ApiVersion]:
    return [ApiVersionsResponse.ApiVersion(*row) for row in advertised_versions(kind)]
