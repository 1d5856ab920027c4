"""Run as text by an interpreter whose torch is to be known (`python -c TEXT`): which it is, and what it sees."""

import json

import torch


def main() -> None:
    cuda, hip = torch.version.cuda, torch.version.hip
    built_for = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else ""
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    print(json.dumps([torch.__version__, built_for, seen]))


if __name__ == "__main__":
    main()
