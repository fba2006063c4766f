import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useEffect, useState } from "react";
import { signIn } from "../api/session";
import { Command } from "../components/command";
import { ErrorNotice } from "../components/error-notice";
import { Field } from "../components/field";
import { ME } from "../session-cache";

/** Sign-in with an API key. The server keeps a session; the key is not stored in the browser. */
export function SignIn() {
  const [key, setKey] = useState("");
  const client = useQueryClient();
  const submit = useMutation({
    mutationFn: () => signIn(key.trim()),
    onSuccess: () => client.resetQueries({ queryKey: ME }),
    onSettled: () => setKey(""),
  });

  useEffect(() => {
    document.title = "Sign in · Tenora";
  }, []);

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    submit.mutate();
  }

  return (
    <main id="content" className="narrow">
      <h1>Sign in to Tenora</h1>
      <form onSubmit={onSubmit} className="card">
        <Field
          label="API key"
          type="password"
          autoComplete="off"
          autoFocus
          required
          spellCheck={false}
          value={key}
          onValue={setKey}
          hint="A tenant's key shows that tenant. A platform key shows the whole server."
        />
        {submit.error !== null && <ErrorNotice error={submit.error} />}
        <button type="submit" className="primary" disabled={key.trim() === "" || submit.isPending}>
          {submit.isPending ? "Signing in…" : "Sign in"}
        </button>
      </form>
      <p>The session ends after an hour without input, after twelve hours, or when you sign out.</p>
      <p>No key yet? The platform team creates one:</p>
      <Command line="tenora keys create console --tenant TENANT" />
    </main>
  );
}
