"""Tables of SQLAlchemy and SQLModel."""

import typing

import sqlalchemy
import sqlmodel
from sqlalchemy import orm

NEEDS = ("sqlalchemy", "sqlmodel")


class Base(orm.DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "user"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[typing.Optional[str]]


class Hero(sqlmodel.SQLModel, table=True):
    id: typing.Optional[int] = sqlmodel.Field(default=None, primary_key=True)
    name: str = ""


class Data(sqlmodel.SQLModel):
    name: str = "a"


def stores(cls=Hero, name="b"):
    engine = sqlalchemy.create_engine("sqlite://")
    cls.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add(cls(id=1, name=name))
        session.commit()
        return session.scalars(sqlalchemy.select(cls)).one().name


def cases():
    yield "a mapped class there", lambda: stores(User), lambda got: got == "b"
    yield "a table of SQLModel there", stores, lambda got: got == "b"
    yield "an instance of a mapped class", User(id=1, name="n"), lambda got: type(got) is User and got.name == "n"
    yield "an instance of a table", Hero(id=1, name="n"), lambda got: type(got) is Hero and got.name == "n"
    yield "a model without a table", Data(name="d"), lambda got: got == Data(name="d")
