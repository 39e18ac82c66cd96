"""What the clock does to balance, in one turn."""

from penstock.controller.balance import balance_in_steps, decide_begin, finished
from penstock.controller.decision import Decision
from penstock.metadata.image import MetadataImage
from penstock.metadata.settings import BrokerSettings


def decide_balance(image: MetadataImage, settings: BrokerSettings, most: int) -> Decision[int]:
    return decide_begin(image, finished(balance_in_steps(image, most)), settings)
