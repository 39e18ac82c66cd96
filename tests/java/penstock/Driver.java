package penstock;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;

/**
 * One JVM for the whole test session: reads one JSON command per line from stdin, answers one JSON line on stdout.
 *
 * A JVM start costs more than a second; the console tools and the Java clients are cheap once it is warm. Rules: one
 * command at a time, every command is bounded in time, and only this class writes to the real stdout.
 */
public final class Driver {
    static final ObjectMapper JSON = new ObjectMapper();

    private Driver() {}

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
            answers.flush();
        }
        Members.stopAll();
        // A client thread that does not end must not keep the JVM.
        Runtime.getRuntime().halt(0);
    }

    private static ObjectNode answer(JsonNode command) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            run(command, answer);
        } catch (Throwable failure) {
            StringWriter trace = new StringWriter();
            failure.printStackTrace(new PrintWriter(trace));
            answer.put("failure", failure.toString());
            answer.put("trace", trace.toString());
        }
        return answer;
    }

    private static void run(JsonNode command, ObjectNode answer) throws Exception {
        String op = command.get("op").asText();
        switch (op) {
            case "tool" -> Tools.run(command, answer);
            case "produce" -> Records.produce(command, answer);
            case "consume" -> Records.consume(command, answer);
            case "transaction" -> Transactions.run(command, answer);
            case "member_start" -> Members.start(command);
            case "member_state" -> Members.state(command, answer);
            case "member_stop" -> Members.stop(command);
            default -> throw new IllegalArgumentException("unknown op " + op);
        }
    }
}
