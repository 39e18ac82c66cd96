"""Controllers that register: where each listens, and which feature levels it knows (KIP-919)."""

from penstock.controller.decision import Decision
from penstock.metadata.image import ControllerImage, MetadataImage
from penstock.metadata.snapshot import controller_record
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.records_metadata import UnregisterControllerRecord


def decide_register_controller(image: MetadataImage, controller: ControllerImage) -> Decision[Refusal | None]:
    """A node tells it again after each start; what is known already writes nothing."""
    known = image.controllers.get(controller.id)
    return Decision([] if known == controller else [controller_record(controller)], None)


def decide_unregister_controller(image: MetadataImage, controller_id: int) -> Decision[Refusal | None]:
    if controller_id not in image.controllers:
        reason = f"controller {controller_id} is not registered"
        return Decision([], Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, reason))
    return Decision([UnregisterControllerRecord(controller_id)], None)
