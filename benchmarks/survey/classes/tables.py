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


links = sqlalchemy.Table(
    "links",
    Base.metadata,
    sqlalchemy.Column("reader", sqlalchemy.ForeignKey("reader.id"), primary_key=True),
    sqlalchemy.Column("book", sqlalchemy.ForeignKey("book.id"), primary_key=True),
)


class Reader(Base):
    __tablename__ = "reader"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    books: orm.Mapped[typing.List["Book"]] = orm.relationship(secondary=links, back_populates="readers")


class Book(Base):
    __tablename__ = "book"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    readers: orm.Mapped[typing.List[Reader]] = orm.relationship(secondary=links, back_populates="books")


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


def reads():
    engine = sqlalchemy.create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add(Reader(id=1, books=[Book(id=2), Book(id=3)]))
        session.commit()
        return len(session.get(Reader, 1).books), session.get(Book, 2).readers[0].id


def cases():
    yield "classes with a table between them", reads, lambda got: got == (2, 1)
    yield "an instance with others", Reader(id=1, books=[Book(id=2)]), lambda got: got.books[0].readers == [got]
    yield "a column of a table", links.c.book, lambda got: got.table.name == "links"
    yield "a mapped class there", lambda: stores(User), lambda got: got == "b"
    yield "a table of SQLModel there", stores, lambda got: got == "b"
    yield "an instance of a mapped class", User(id=1, name="n"), lambda got: type(got) is User and got.name == "n"
    yield "an instance of a table", Hero(id=1, name="n"), lambda got: type(got) is Hero and got.name == "n"
    yield "a model without a table", Data(name="d"), lambda got: got == Data(name="d")
