//! What one route takes and answers, in the terms of OpenAPI.

use super::headers;
use super::refusals::Refusals;
use std::collections::BTreeMap;
use utoipa::openapi::link::{Link, LinkBuilder};
use utoipa::openapi::path::{OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder};
use utoipa::openapi::{Content, ContentBuilder, Ref, RefOr, Required, Response, ResponseBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};
use warmhold_ledger::Scope;

pub(super) const JSON: &str = "application/json";

/// The shapes that have been named so far.
#[derive(Default)]
pub(super) struct Shapes(pub(super) BTreeMap<String, RefOr<Schema>>);

impl Shapes {
    /// Refers to a type, which then is a component with everything that it consists of.
    pub(super) fn of<T: ToSchema>(&mut self) -> RefOr<Schema> {
        let mut parts = vec![(T::name().into_owned(), T::schema())];
        T::schemas(&mut parts);
        self.0.extend(parts);
        Ref::from_schema_name(T::name()).into()
    }

    /// A list of them.
    pub(super) fn list_of<T: ToSchema>(&mut self) -> RefOr<Schema> {
        ArrayBuilder::new().items(self.of::<T>()).into()
    }
}

/// What a route takes and answers, beside what follows from who may use it.
#[derive(Default)]
pub(super) struct Told {
    pub(super) summary: &'static str,
    pub(super) notes: &'static str,
    /// Whose tokens it takes, where that is less than its access says.
    pub(super) callers: Option<&'static [Scope]>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<RequestBody>,
    pub(super) answers: Vec<(u16, Response)>,
    links: Vec<(&'static str, Link)>,
    pub(super) refusals: Refusals,
}

impl Told {
    pub(super) fn new(summary: &'static str, refusals: Refusals) -> Self {
        Self { summary, refusals, ..Self::default() }
    }

    /// What else there is to say.
    pub(super) fn notes(mut self, notes: &'static str) -> Self {
        self.notes = notes;
        self
    }

    pub(super) fn callers(mut self, callers: &'static [Scope]) -> Self {
        self.callers = Some(callers);
        self
    }

    pub(super) fn parameter(mut self, parameter: ParameterBuilder) -> Self {
        self.parameters.push(parameter.build());
        self
    }

    /// Takes a JSON body. Its content type isn't looked at.
    pub(super) fn takes(mut self, schema: RefOr<Schema>, required: bool) -> Self {
        let body = RequestBodyBuilder::new().content(JSON, Content::new(Some(schema))).required(Some(if required {
            Required::True
        } else {
            Required::False
        }));
        self.body = Some(body.build());
        self.refusals = self.refusals.json();
        self
    }

    /// Takes bytes.
    pub(super) fn takes_bytes(mut self, content_type: &str, description: &str) -> Self {
        let schema = ObjectBuilder::new().schema_type(Type::String).content_media_type(content_type);
        let body = RequestBodyBuilder::new()
            .description(Some(description))
            .content(content_type, Content::new(Some(schema.build())))
            .required(Some(Required::True));
        self.body = Some(body.build());
        self.refusals = self.refusals.body();
        self
    }

    /// Answers 200 with JSON.
    pub(super) fn gives(self, description: &str, schema: RefOr<Schema>) -> Self {
        let answer = ResponseBuilder::new().description(description).content(JSON, Content::new(Some(schema)));
        self.answers(200, headers::on_every(answer))
    }

    /// Answers 200 with JSON that a policy decided.
    pub(super) fn decides(self, description: &str, schema: RefOr<Schema>) -> Self {
        let answer = ResponseBuilder::new().description(description).content(JSON, Content::new(Some(schema)));
        self.answers(200, headers::on_decided(headers::on_every(answer)))
    }

    /// Answers 200 with text.
    pub(super) fn gives_text(self, description: &str, schema: ObjectBuilder) -> Self {
        let content = ContentBuilder::new().schema(Some(schema.build()));
        let answer = ResponseBuilder::new().description(description).content("text/plain", content.build());
        self.answers(200, headers::on_every(answer))
    }

    /// Answers 204 after a policy decided.
    pub(super) fn removes(self, description: &str) -> Self {
        let answer = ResponseBuilder::new().description(description);
        self.answers(204, headers::on_decided(headers::on_every(answer)))
    }

    pub(super) fn answers(mut self, status: u16, answer: ResponseBuilder) -> Self {
        self.answers.push((status, answer.build()));
        self
    }

    /// Its answer of 200 says what another operation needs: by parameter, where in the body it is.
    pub(super) fn leads_to(mut self, operation: &'static str, parameters: &[(&str, &str)]) -> Self {
        let link = parameters.iter().fold(LinkBuilder::new().operation_id(operation), |link, (name, place)| {
            link.parameter(*name, format!("$response.body#{place}"))
        });
        self.links.push((operation, link.build()));
        self
    }

    /// As an operation, without what every route has in common.
    pub(super) fn operation(self) -> OperationBuilder {
        let mut operation = OperationBuilder::new().summary(Some(self.summary)).request_body(self.body);
        if !self.notes.is_empty() {
            operation = operation.description(Some(self.notes));
        }
        for parameter in self.parameters {
            operation = operation.parameter(parameter);
        }
        for (status, mut answer) in self.answers.into_iter().chain(self.refusals.answers()) {
            if status == 200 {
                answer.links.extend(self.links.iter().map(|(name, link)| ((*name).to_owned(), link.clone().into())));
            }
            operation = operation.response(status.to_string(), answer);
        }
        operation
    }
}

/// A segment of the path.
pub(super) fn in_path(name: &str, description: &str, schema: impl Into<RefOr<Schema>>) -> ParameterBuilder {
    parameter(name, ParameterIn::Path, description, schema).required(Required::True)
}

/// A part of the query.
pub(super) fn in_query(name: &str, description: &str, schema: impl Into<RefOr<Schema>>) -> ParameterBuilder {
    parameter(name, ParameterIn::Query, description, schema).required(Required::False)
}

/// A header.
pub(super) fn in_header(name: &str, description: &str, schema: impl Into<RefOr<Schema>>) -> ParameterBuilder {
    parameter(name, ParameterIn::Header, description, schema).required(Required::True)
}

fn parameter(name: &str, place: ParameterIn, description: &str, schema: impl Into<RefOr<Schema>>) -> ParameterBuilder {
    ParameterBuilder::new().name(name).parameter_in(place).description(Some(description)).schema(Some(schema))
}

/// A type's own schema, in place.
pub(super) fn inline<T: PartialSchema>() -> RefOr<Schema> {
    T::schema()
}
