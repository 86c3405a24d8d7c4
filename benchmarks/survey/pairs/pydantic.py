"""Values of pydantic that its documentation shows first: the pages of its concepts, in their order."""

import datetime
import decimal
import enum
import typing
import uuid

import pydantic
from pydantic import BaseModel, ConfigDict, Field


def same(a, b):
    """Compare two models, also of classes of one name."""
    return type(a).__name__ == type(b).__name__ and a.model_dump() == b.model_dump() and repr(a) == repr(b)


def equal(a, b):
    """Compare two values."""
    return type(a).__name__ == type(b).__name__ and bool(a == b)


class User(BaseModel):
    id: int
    name: str = "Jane Doe"
    signup_ts: typing.Optional[datetime.datetime] = None
    tastes: dict[str, pydantic.PositiveInt] = {}


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", str_max_length=10)
    x: int


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int = 1


class Foo(BaseModel):
    count: int
    size: typing.Optional[float] = None


class Nested(BaseModel):
    foo: Foo
    bars: list[Foo]


class Constrained(BaseModel):
    positive: int = Field(gt=0)
    text: str = Field("a", min_length=1, max_length=10, pattern="^[a-z]+$")
    ratio: float = Field(0.5, ge=0, le=1, multiple_of=0.5)
    price: decimal.Decimal = Field(decimal.Decimal("1.5"), max_digits=5, decimal_places=2)
    aliased: int = Field(1, alias="theAlias")
    hidden: int = Field(1, exclude=True, repr=False, description="Hidden.", title="H", examples=[1])
    made: uuid.UUID = Field(default_factory=lambda: uuid.UUID(int=3))
    short: typing.Annotated[str, Field(max_length=3)] = "abc"


class Validated(BaseModel):
    name: str
    password: str = "a"
    again: str = "a"

    @pydantic.field_validator("name", mode="after")
    @classmethod
    def name_has_space(cls, value):
        if " " not in value:
            raise ValueError("must contain a space")
        return value.title()

    @pydantic.model_validator(mode="after")
    def passwords_match(self):
        if self.password != self.again:
            raise ValueError("passwords do not match")
        return self

    @pydantic.field_serializer("password")
    def stars(self, value):
        return "*" * len(value)


class Computed(BaseModel):
    width: float
    _secret: int = pydantic.PrivateAttr(default=3)

    @pydantic.computed_field
    @property
    def area(self) -> float:
        return self.width**2

    def secret(self):
        return self._secret


class Cat(BaseModel):
    kind: typing.Literal["cat"]
    meows: int


class Dog(BaseModel):
    kind: typing.Literal["dog"]
    barks: float


class Pet(BaseModel):
    pet: typing.Union[Cat, Dog] = Field(discriminator="kind")


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Pets(pydantic.RootModel[list[str]]):
    pass


T = typing.TypeVar("T")


class Response(BaseModel, typing.Generic[T]):
    data: typing.Optional[T] = None


class Colour(str, enum.Enum):
    RED = "red"


class Types(BaseModel):
    colour: Colour = Colour.RED
    url: pydantic.HttpUrl = pydantic.HttpUrl("https://example.com/a")
    secret: pydantic.SecretStr = pydantic.SecretStr("a")
    when: datetime.date = datetime.date(2020, 1, 1)
    small: pydantic.conint(lt=5) = 3
    email: typing.Optional[str] = None
    path: pydantic.DirectoryPath = "/"
    of_json: pydantic.Json = "[1]"
    size: pydantic.ByteSize = pydantic.ByteSize(3)
    call: typing.Any = None


class Child(User):
    age: int = 3


@pydantic.dataclasses.dataclass
class Data:
    a: int
    b: typing.Optional[str] = None


@pydantic.dataclasses.dataclass(config=ConfigDict(validate_assignment=True), frozen=True)
class FrozenData:
    a: int = Field(3, gt=1)


@pydantic.validate_call
def repeated(text: str, count: int = 2) -> str:
    return text * count


@pydantic.validate_call(config=ConfigDict(strict=True), validate_return=True)
def strictly(n: int) -> int:
    return n


def positive(value):
    if value < 0:
        raise ValueError("negative")
    return value


Dynamic = pydantic.create_model("Dynamic", foo=(str, ...), bar=(int, 123))
DynamicChild = pydantic.create_model("DynamicChild", __base__=User, apple=(str, "russet"))
DynamicChecked = pydantic.create_model(
    "DynamicChecked",
    n=(int, Field(3, gt=1, description="n")),
    __validators__={"checked": pydantic.field_validator("n")(classmethod(lambda cls, value: positive(value)))},
)
DynamicConfig = pydantic.create_model("DynamicConfig", __config__=ConfigDict(frozen=True), x=(list[int], []))
DynamicNested = pydantic.create_model("DynamicNested", inner=(Dynamic, ...), user=(User, User(id=1)))
Limited = typing.Annotated[int, Field(gt=3), pydantic.AfterValidator(positive)]

MODELS = {
    "a model": lambda: User(id="123", tastes={"wine": 9}),
    "a strict model": lambda: Strict(x=1),
    "a model with more": lambda: Extra(y=2),
    "a nested model": lambda: Nested(foo=Foo(count=4), bars=[{"count": 1, "size": 2.5}]),
    "a model with constraints": lambda: Constrained(positive=1, theAlias=3),
    "a model with validators": lambda: Validated(name="a b"),
    "a model with computed fields": lambda: Computed(width=2),
    "a model of a union": lambda: Pet(pet={"kind": "dog", "barks": 3.5}),
    "a recursive model": lambda: Node(value=1, children=[Node(value=2)]),
    "a root model": lambda: Pets(["a"]),
    "a generic model": lambda: Response[int](data=1),
    "a generic model of models": lambda: Response[list[Foo]](data=[Foo(count=1)]),
    "a model of many types": lambda: Types(),
    "a child": lambda: Child(id=1),
    "a model without checks": lambda: User.model_construct(id="x"),
    "a copy": lambda: User(id=1).model_copy(update={"name": "b"}),
    "a model made by a call": lambda: Dynamic(foo="a"),
    "a child made by a call": lambda: DynamicChild(id=1),
    "a checked model made by a call": lambda: DynamicChecked(n=4),
    "a model with settings made by a call": lambda: DynamicConfig(x=[1]),
    "a nested model made by a call": lambda: DynamicNested(inner=Dynamic(foo="b")),
}
VALUES = {
    "a dataclass": lambda: Data(a="1"),
    "a frozen dataclass": lambda: FrozenData(5),
    "a URL": lambda: pydantic.HttpUrl("https://example.com/a?b=1"),
    "a URL of a database": lambda: pydantic.PostgresDsn("postgresql://user:pass@localhost:5432/app"),
    "any URL": lambda: pydantic.AnyUrl("foo://example.com"),
    "a secret": lambda: pydantic.SecretStr("a"),
    "secret bytes": lambda: pydantic.SecretBytes(b"a"),
    "a size": lambda: pydantic.ByteSize(1000),
    "settings": lambda: ConfigDict(strict=True),
    "a dumped model": lambda: User(id=1).model_dump(),
    "a schema": lambda: Foo.model_json_schema(),
    "an alias": lambda: pydantic.AliasPath("a", 0),
    "aliases": lambda: pydantic.AliasChoices("a", pydantic.AliasPath("b", 1)),
    "models in a dict": lambda: {"a": [Foo(count=1)]},
}
OTHERS = {
    "a class": (lambda: User, lambda a, b: b(id="3").id == 3),
    "a class made by a call": (lambda: Dynamic, lambda a, b: b(foo="x").bar == 123),
    "a checking class made by a call": (lambda: DynamicChecked, lambda a, b: _error(lambda: b(n=1)) and b(n=2).n == 2),
    "a frozen class made by a call": (lambda: DynamicConfig, lambda a, b: _error(lambda: setattr(b(), "x", 1))),
    "a parametrised class": (lambda: Response[int], lambda a, b: b(data="1").data == 1),
    "an adapter": (lambda: pydantic.TypeAdapter(list[int]), lambda a, b: b.validate_python(["1"]) == [1]),
    "an adapter of models": (
        lambda: pydantic.TypeAdapter(dict[str, User]),
        lambda a, b: b.validate_python({"a": {"id": 1}})["a"].id == 1,
    ),
    "a strict adapter": (
        lambda: pydantic.TypeAdapter(int, config=ConfigDict(strict=True)),
        lambda a, b: _error(lambda: b.validate_python("1")),
    ),
    "an adapter of a limited type": (
        lambda: pydantic.TypeAdapter(Limited),
        lambda a, b: _error(lambda: b.validate_python(2)) and b.validate_python(5) == 5,
    ),
    "a field": (
        lambda: Field(gt=3, description="d"),
        lambda a, b: b.description == "d" and repr(a.metadata) == repr(b.metadata),
    ),
    "a field of a model": (
        lambda: Constrained.model_fields["text"],
        lambda a, b: b.default == "a" and len(a.metadata) == len(b.metadata),
    ),
    "an annotated type": (lambda: Limited, lambda a, b: _error(lambda: pydantic.TypeAdapter(b).validate_python(-1))),
    "a checked function": (lambda: repeated, lambda a, b: b("a", count="3") == "aaa"),
    "a strict function": (lambda: strictly, lambda a, b: b(3) == 3 and _error(lambda: b("3"))),
    "a validator": (lambda: pydantic.AfterValidator(positive), lambda a, b: b.func(3) == 3),
    "a private attribute": (lambda: Computed(width=1), lambda a, b: b.secret() == 3 and b.area == 1),
    "an error": (
        lambda: _error(lambda: User(id="x")),
        lambda a, b: str(a).split("For further")[0] == str(b).split("For further")[0],
    ),
    "a method": (lambda: User(id=1).model_dump, lambda a, b: b() == a()),
    "fields that were set": (lambda: User(id=1), lambda a, b: b.model_fields_set == {"id"}),
    "a validator of the core": (lambda: pydantic.ValidationInfo, lambda a, b: True),
    "a type": (lambda: pydantic.PositiveInt, lambda a, b: pydantic.TypeAdapter(b).validate_python(1) == 1),
}


def _error(call):
    try:
        call()
    except pydantic.ValidationError as error:
        return error
    return None


def cases():
    """Yield a name, what makes a value, and what compares two of them."""
    for name, maker in MODELS.items():
        yield name, maker, same
    for name, maker in VALUES.items():
        yield name, maker, equal
    for name, (maker, compare) in OTHERS.items():
        yield name, maker, compare
