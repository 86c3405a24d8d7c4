"""placeholder"""
def build(state: object) -> None:
    pass
