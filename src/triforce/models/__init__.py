"""Model families and the loading of their weights."""

from triforce.models.config import ModelConfig, RopeScaling
from triforce.models.decoder import Decoder
from triforce.models.load import load_model
from triforce.models.rope_scaling import build_rope

__all__ = ["Decoder", "ModelConfig", "RopeScaling", "build_rope", "load_model"]
