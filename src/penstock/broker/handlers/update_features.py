"""UpdateFeatures (key 57), versions 0–2. v1: upgrade types and validation only. v2: all or nothing, one error."""

from typing import TYPE_CHECKING

from penstock.controller.features import SAFE_DOWNGRADE, UPGRADE, FeatureUpdate, decide_update_features
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Row = UpdateFeaturesResponse.UpdatableFeatureResult
_NOT_TOGETHER = "another feature of the request was refused"


async def handle(
    broker: "Broker", context: "RequestContext", request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    if not broker.gate.allows_cluster(context, Operation.ALTER):
        return UpdateFeaturesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    updates = [_update(each, context.api_version) for each in request.feature_updates]
    answers: dict[str, Refusal | None] = await broker.controller.submit(
        lambda view: decide_update_features(
            view.image, updates, broker.static_settings, validate_only=request.validate_only
        ),
        unavailable=lambda refusal: {update.name: refusal for update in updates},
    )
    refused = next((refusal for refusal in answers.values() if refusal is not None), None)
    if refused is None:
        return UpdateFeaturesResponse(error_message=None, results=[Row(name, 0, None) for name in answers])
    if context.api_version >= 2:
        return UpdateFeaturesResponse(error_code=refused.code, error_message=refused.message)
    return UpdateFeaturesResponse(error_message=None, results=[_row(name, each) for name, each in answers.items()])


def _update(each: UpdateFeaturesRequest.FeatureUpdateKey, version: int) -> FeatureUpdate:
    if version == 0:
        return FeatureUpdate(
            each.feature, each.max_version_level, SAFE_DOWNGRADE if each.allow_downgrade else UPGRADE
        )
    return FeatureUpdate(each.feature, each.max_version_level, each.upgrade_type)


def _row(name: str, refusal: Refusal | None) -> Row:
    refusal = refusal or Refusal(ErrorCode.FEATURE_UPDATE_FAILED, _NOT_TOGETHER)
    return Row(name, refusal.code, refusal.message)
