// The numbers that the fields of the IETF's draft tell: RateLimit-Policy: "name";q=10;w=1 and RateLimit: "name";r=7;t=1.

function parameter(field, name) {
  const found = new RegExp(`;${name}=(\\d+)`).exec(field ?? "");
  return found && Number(found[1]);
}

export function budget(headers) {
  const policy = headers.get("RateLimit-Policy");
  const [allowed, seconds] = [parameter(policy, "q"), parameter(policy, "w")];
  const remaining = parameter(headers.get("RateLimit"), "r");
  return seconds === null || remaining === null ? null : { remaining, perSecond: allowed / seconds };
}
