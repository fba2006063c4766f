import { CopyButton } from "../../components/copy-button";
import { type Settings, chatBody } from "./request";

/** Copy the request as a curl command or as a program with the openai SDK. The key is not part of it. */
export function CopyCode({ model, settings }: { model: string; settings: Settings }) {
  return (
    <>
      <CopyButton label="Copy as curl" text={asCurl(model, settings)} />
      <CopyButton label="Copy as openai code" text={asOpenai(model, settings)} />
    </>
  );
}

export function asCurl(model: string, settings: Settings): string {
  const body = JSON.stringify(chatBody(model, settings)).replaceAll("'", `'\\''`);
  return [
    `curl -sf ${location.origin}/v1/chat/completions`,
    `  -H "Authorization: Bearer $TENORA_KEY"`,
    `  -H 'Content-Type: application/json'`,
    `  -d '${body}'`,
  ].join(" \\\n");
}

export function asOpenai(model: string, settings: Settings): string {
  const { messages, ...rest } = chatBody(model, settings);
  // JSON strings and numbers are Python literals too.
  const options = Object.entries(rest).map(([name, value]) => `    ${name}=${JSON.stringify(value)},`);
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${location.origin}/v1", api_key=os.environ["TENORA_KEY"])`,
    "answer = client.chat.completions.create(",
    ...options,
    `    messages=${JSON.stringify(messages)},`,
    ")",
    "print(answer.choices[0].message.content)",
    "",
  ].join("\n");
}
