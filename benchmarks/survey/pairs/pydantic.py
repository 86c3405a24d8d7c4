"""Between pydantic 2.9 and the newest: the models that its documentation shows first."""

import datetime
import enum
import uuid
from dataclasses import field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, List, Literal, Optional, TypeVar, Union

import pydantic
from pydantic import (
    AliasChoices, AnyUrl, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, HttpUrl, PositiveInt, PrivateAttr,
    RootModel, SecretStr, TypeAdapter, ValidationError, computed_field, field_serializer, field_validator,
    model_validator, validate_call,
)  # fmt: skip
from pydantic.dataclasses import dataclass

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class User(BaseModel):
    id: int
    name: str = "John Doe"
    signup_ts: Optional[datetime.datetime] = None
    tastes: dict[str, PositiveInt] = {}


class Nested(BaseModel):
    user: User
    others: List[User] = Field(default_factory=list)
    color: Color = Color.RED


class Checked(BaseModel):
    model_config = ConfigDict(validate_assignment=True, extra="forbid", frozen=False, str_strip_whitespace=True)
    name: str = Field(min_length=1, max_length=10, pattern="^[a-z]+$", description="its name")
    age: int = Field(ge=0, le=150, alias="Age")
    tags: list[str] = []

    @field_validator("name")
    @classmethod
    def no_root(cls, value):
        if value == "root":
            raise ValueError("not root")
        return value

    @model_validator(mode="after")
    def tags_have_names(self):
        if "bad" in self.tags:
            raise ValueError("bad tag")
        return self


class Computed(BaseModel):
    width: float

    @computed_field
    @property
    def area(self) -> float:
        return self.width**2

    @field_serializer("width")
    def shown(self, value):
        return f"{value} m"


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    x: int = 1


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int = 1


class Private(BaseModel):
    x: int = 1
    _count: int = PrivateAttr(default=3)


class Page(BaseModel, Generic[T]):
    items: List[T]
    total: int = 0


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Owner(BaseModel):
    pet: Annotated[Union[Cat, Dog], Field(discriminator="kind")]


class Tree(BaseModel):
    value: int
    children: List["Tree"] = []


class Tags(RootModel[List[str]]):
    pass


class Loaded(BaseModel):
    name: str = Field(validation_alias=AliasChoices("name", "title"))
    size: Annotated[int, BeforeValidator(int)] = 1


class Kinds(BaseModel):
    when: datetime.date = datetime.date(2024, 1, 1)
    price: Decimal = Decimal("1.5")
    key: uuid.UUID = uuid.UUID(int=1)
    path: Path = Path("/tmp")
    secret: SecretStr = SecretStr("s")
    site: HttpUrl = "https://example.org"
    size: ByteSize = ByteSize(1)
    any: Any = None


class Admin(User):
    rights: set[str] = {"all"}


@dataclass
class Item:
    name: str
    price: float = 1.0
    tags: list[str] = field(default_factory=list)


@validate_call
def double(x: int) -> int:
    return 2 * x


def validated():
    return User.model_validate({"id": "123", "name": "x", "tastes": {"wine": "9"}})


def refused():
    try:
        User(id="not a number")
    except ValidationError as error:
        return error


def refused_checked():
    try:
        Checked(name="root", Age=3)
    except ValidationError as error:
        return str(error)


def schema():
    return Nested.model_json_schema()


def dumped():
    return Nested(user=User(id=1)).model_dump(mode="json")


def doubled():
    return double("4")


def adapted():
    return TypeAdapter(List[User]).validate_python([{"id": 1}])


def cases():
    made = {
        "User": User(id=123, signup_ts="2019-06-01 12:22", tastes={"wine": 9}), "Nested": Nested(user=User(id=1), others=[User(id=2)]),
        "Checked": Checked(name=" ab ", Age=3), "Computed": Computed(width=2), "Frozen": Frozen(), "Extra": Extra(y=2),
        "Private": Private(), "Page": Page(items=[1]), "Owner": Owner(pet={"kind": "dog"}), "Admin": Admin(id=1),
        "Tree": Tree(value=1, children=[Tree(value=2)]), "Tags": Tags(["a"]), "Loaded": Loaded(title="t", size="3"),
        "Kinds": Kinds(), "Item": Item("a", tags=["x"]), "Page[int]": Page[int](items=[1]), "Page[User]": Page[User](items=[User(id=1)]),
        "constructed": User.model_construct(id="raw"), "copied": User(id=1).model_copy(update={"name": "z"}),
    }  # fmt: skip
    for name, value in made.items():
        yield f"instance of {name}", value, lambda back, one=value: back == one and type(back) is type(one)
    for cls in (User, Nested, Checked, Computed, Frozen, Extra, Private, Page, Owner, Tree, Tags, Loaded, Kinds, Admin, Item):
        yield f"class {cls.__name__}", cls, lambda back, one=cls: back is one
    yield "class Page[int]", Page[int], lambda back: back is Page[int]
    yield "list of models", [User(id=n) for n in range(3)], lambda back: back[2] == User(id=2)
    yield "dict of models", {"a": Nested(user=User(id=1))}, lambda back: back["a"].user.id == 1
    yield "a private attribute", Private(), lambda back: back._count == 3
    yield "fields that were set", User(id=1), lambda back: back.model_fields_set == {"id"}
    yield "SecretStr", SecretStr("s"), None
    yield "HttpUrl", Kinds().site, lambda back: str(back) == "https://example.org"
    yield "AnyUrl", TypeAdapter(AnyUrl).validate_python("ftp://a.b/c"), lambda back: str(back) == "ftp://a.b/c"
    yield "ByteSize", ByteSize(5), None
    yield "Field(...)", Field(default=1), lambda back: back.default == 1
    yield "ConfigDict", ConfigDict(extra="allow"), None
    yield "validate_call", double, lambda back: True
    yield "validated in a job", validated, lambda back: back == User(id=123, name="x", tastes={"wine": 9})
    yield "ValidationError as a value", refused, lambda back: isinstance(back, ValidationError) and back.errors()[0]["loc"] == ("id",)
    yield "ValidationError as text", refused_checked, lambda back: "not root" in back
    yield "schema in a job", schema, lambda back: "user" in back["properties"]
    yield "dumped in a job", dumped, lambda back: back["user"]["id"] == 1
    yield "validate_call in a job", doubled, lambda back: back == 8
    yield "TypeAdapter in a job", adapted, lambda back: back[0] == User(id=1)
    yield "TypeAdapter(int)", TypeAdapter(int), lambda back: back.validate_python("3") == 3
    yield "create_model", pydantic.create_model("Made", x=(int, 1)), lambda back: back().x == 1
    yield "an instance of create_model", pydantic.create_model("Made", x=(int, 1))(), lambda back: back.x == 1
    yield "PydanticUserError", pydantic.PydanticUserError("m", code=None), lambda back: back.message == "m"
